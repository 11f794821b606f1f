"""Settings of the doctor."""

import dataclasses

from bert_gpu.base.settings import Settings, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorConfig(Settings):
    """An examination of this machine."""

    json: bool = setting(False, "Print JSON.")
    trials: bool = setting(
        True, "Measure matrix products and try a training step on every device; half a minute."
    )
    trial_seconds: float = setting(
        300.0,
        "Time after which a trial that has not ended counts as failed.",
        above=0.0,
        unit="seconds",
        needs=("trials", (True,)),
    )
