"""Words for what the flight recorder left."""

from __future__ import annotations

from launcher.hangs import flight_recorder_lines


def test_files_of_the_flight_recorder_are_named_with_what_reads_them(tmp_path):
    for node, ranks in ((0, (0, 1)), (1, (2,))):
        (tmp_path / f"files/node_{node}").mkdir(parents=True)
        for rank in ranks:
            (tmp_path / f"files/node_{node}/nccl_trace_rank_{rank}").touch()
    assert flight_recorder_lines(tmp_path) == [
        f"  NCCL's flight recorder of 3 ranks: {tmp_path}/files",
        f"    which rank misses in which collective: torchfrtrace --prefix nccl_trace_rank_ {tmp_path}/files",
    ]


def test_other_files_are_not(tmp_path):
    assert flight_recorder_lines(tmp_path) == []
    (tmp_path / "files/node_0").mkdir(parents=True)
    (tmp_path / "files/node_0/results.json").touch()
    assert flight_recorder_lines(tmp_path) == []
