"""Upstream's own words for what Ray cannot give, as the troubleshooting page quotes them."""

from __future__ import annotations

from tests.integration import upstream
from tests.troubleshooting import row


def test_row_ray_gpus() -> None:
    """Read from the source: no Ray is here that could say it."""
    text = upstream.tree("0.18.1").text("vllm/v1/executor/ray_utils.py")
    assert row("ray_gpus").symptom in text
    assert "`ray status`" in text
    assert 'ray_device_key: str = "GPU"' in upstream.tree("0.18.1").text("vllm/platforms/rocm.py")
