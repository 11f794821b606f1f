"""The settings of launch."""

import dataclasses

from bert_gpu.base.settings import Settings, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchConfig(Settings):
    """The workers, and what happens when one of them dies."""

    num_workers: int = setting(
        2,
        "Processes to start; the GPUs of this machine are divided among them.",
        low=1,
        high=64,
    )
    restarts: int = setting(
        0,
        "How many times all workers are started again after one of them has died; they resume "
        "from the last checkpoint. Bad input and divergence do not cause a restart.",
        low=0,
    )
    log_dir: str | None = setting(
        None,
        "Folder for the output of the workers other than 0, worker-00001.log and so on. Default: "
        "a new folder in the system's temporary one, which is deleted after success.",
    )
