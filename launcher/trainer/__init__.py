"""The built-in trainer: a small model, on one process or on many machines. It knows nothing of the launcher.

In reading order:

    options               a frozen dataclass as keys of a file and as flags
    config                all that the trainer can be told
    prepare_data          Tiny Shakespeare, checked by its hash
    model                 a small GPT, and a perceptron
    parallel              how the ranks share the work: DDP, FSDP2, tensor parallel
    data                  a text as bytes, or a made-up regression
    optimization          one step of learning
    stopping              SIGTERM, agreed on by all ranks
    evaluation            the validation loss, exact on any number of ranks
    save_folder           a directory in which all is whole or not there
    run_mark              what a run leaves in its directory, by which a later attempt knows it
    continuation          the command that goes on with a run
    resumption            what --resume goes on from, and which earlier run's files refuse a run
    ownership             which directory a run saves in, and whose files lie there already
    checkpoint_reading    a checkpoint read as data, so that no code in it runs
    checkpoint            save, and go on with any number of ranks
    flops                 model FLOPs utilisation
    progress              one line on a terminal
    trackers              where the figures go: JSON lines, TensorBoard, MLflow, W&B
    curve                 the loss curve as a picture
    journal               what rank 0 tells while it goes
    report                the start report
    loop                  step, log, validate, save
"""
