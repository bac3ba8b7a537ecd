"""The built-in trainer: a small model, in one process or on many hosts. It doesn't depend on `launch`.

In reading order:

    options               turn a frozen dataclass into keys of a file and flags
    config                all options of the trainer
    prepare_data          download Tiny Shakespeare and check its hash
    layout                the table of ranks: who shares what with whom
    model                 a small GPT, and a perceptron
    weights               the first weights, the same however the ranks split the model
    precision             mixed precision and TF32
    activation_checkpointing  compute activations again instead of keeping them
    parallel              each rank's part of the model: DDP, FSDP2, tensor parallel
    main_rank             work that rank 0 does for all ranks, without a time limit
    text                  the text, mapped from one file per node
    sample_order          the order of the samples in each epoch
    data                  a text as bytes or characters, or a made-up regression, in batches
    optimization          one training step
    stopping              SIGTERM, agreed on by all ranks
    evaluation            the validation loss, exact on any number of ranks
    randomness            the seeds of the ranks, and the generators' states in a checkpoint
    checkpoints/          save checkpoints, and resume on any number of ranks
    run_mark              the file by which a later attempt recognizes the run's directory
    continuation          the command that continues a run
    resumption            what --resume continues, and when an earlier run's files refuse a run
    ownership             which directory a run saves in, and whether others' files are in it
    flops                 model FLOPs utilization
    progress              a progress line on a terminal
    trackers              where the metrics go: JSON lines, TensorBoard, MLflow, W&B
    curve                 the loss curve as a picture
    report                the start report, and the memory that was used
    journal               what rank 0 prints and tracks during training
    sigterm_exit          the end of a run after SIGTERM
    schedule              how many steps a run takes
    loop                  step, log, validate, save
    generate              write text with a trained model
"""
