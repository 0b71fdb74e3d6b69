"""TEST ONLY. An amdsmi that says what the environment tells it to say.

FAKE_AMDSMI_ARCH: the arch of every device, or one for each, separated by commas. FAKE_AMDSMI_COUNT: how many (default 1). FAKE_AMDSMI_FAIL: `KeyError`,
`OSError` or `ImportError` (raised while this module is imported), `init` (raised by amdsmi_init).
"""

import os
from collections.abc import Callable

_fail = os.environ.get("FAKE_AMDSMI_FAIL", "")
if _fail in ("KeyError", "OSError", "ImportError"):
    raise {"KeyError": KeyError, "OSError": OSError, "ImportError": ImportError}[_fail]("fake amdsmi was told to fail")


class AmdSmiException(Exception):
    """As in the real module."""


def amdsmi_init(*_args: object) -> None:
    if _fail == "init":
        raise AmdSmiException("fake amdsmi was told to fail")


def amdsmi_shut_down() -> None:
    pass


def amdsmi_get_processor_handles() -> list[int]:
    return list(range(max(int(os.environ.get("FAKE_AMDSMI_COUNT", "1")), os.environ["FAKE_AMDSMI_ARCH"].count(",") + 1)))


def amdsmi_get_gpu_asic_info(handle: int) -> dict[str, str]:
    archs = os.environ["FAKE_AMDSMI_ARCH"].split(",")
    return {
        "target_graphics_version": archs[min(handle, len(archs) - 1)],
        "device_id": "0x0",
        "market_name": "device of the fake amdsmi",
    }


def amdsmi_topo_get_link_type(_a: int, _b: int) -> dict[str, int]:
    return {"type": 2, "hops": 1}


def __getattr__(name: str) -> Callable[..., None]:
    """What later releases import besides: there, and failing when it is called, as on a device that does not support it."""
    if not name.startswith(("amdsmi_", "AmdSmi")):
        raise AttributeError(name)

    def unsupported(*_args: object) -> None:
        raise AmdSmiException(f"the fake amdsmi has no {name}")

    return unsupported
