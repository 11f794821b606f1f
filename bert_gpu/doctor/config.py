"""Settings of the doctor."""

import dataclasses

from bert_gpu.base.settings import Settings, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorConfig(Settings):
    """An examination of this machine."""

    json: bool = setting(False, "Print JSON.")
