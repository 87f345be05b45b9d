"""`pagoda plan --list`: the models and accelerators that it knows by name."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from pagoda.models.config import ModelConfig
from pagoda.planning.architecture import read_architecture
from pagoda.planning.tables import Accelerator, accelerators, model_rows
from pagoda.sizing.capacity import GIB


def listed() -> dict[str, list[dict[str, Any]]]:
    """Both tables as plain values: sizes in bytes, rates a second."""
    return {
        "models": [_model(hub_id, row) for hub_id, row in sorted(model_rows().items(), key=_name)],
        "accelerators": [_accelerator(device) for device in accelerators()],
    }


def print_list(console: Console) -> None:
    """Both tables, a line for each name."""
    told = listed()
    models = _table("model", "parameters", "of them active", "longest request", right=(1, 2, 3))
    for row in told["models"]:
        length = row["max_model_len"]
        models.add_row(
            row["name"],
            f"{row['parameters'] / 1e9:,.2f} B",
            f"{row['active_parameters'] / 1e9:,.2f} B",
            "–" if length is None else f"{length:,}",
        )
    devices = _table("accelerator", "vendor", "memory", "bandwidth", right=(2, 3))
    for row in told["accelerators"]:
        devices.add_row(
            row["name"],
            row["vendor"],
            f"{row['memory_bytes'] / GIB:,.2f} GiB",
            f"{row['bandwidth'] / 1e9:,.0f} GB/s",
        )
    console.print(models)
    console.print()
    console.print(devices)


def _name(item: tuple[str, Any]) -> str:
    return item[0].casefold()


def _model(hub_id: str, row: Any) -> dict[str, Any]:
    return {
        "name": hub_id,
        "aliases": list(row.get("aliases", ())),
        "parameters": row["parameters"],
        "active_parameters": row.get("active_parameters") or row["parameters"],
        "max_model_len": read_architecture(ModelConfig(row["config"])).max_model_len,
    }


def _accelerator(device: Accelerator) -> dict[str, Any]:
    return {
        "name": device.name,
        "vendor": device.vendor,
        "memory_bytes": device.memory_bytes,
        "bandwidth": device.bandwidth,
        "bf16_rate": device.bf16_rate,
        "fp8_rate": device.fp8_rate,
    }


def _table(*headings: str, right: tuple[int, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        justify: Any = "right" if place in right else "left"
        table.add_column(heading, justify=justify, no_wrap=True)
    return table
