"""What the control groups (version 2) that this process is in leave it.

    /proc/self/cgroup     0::/system.slice/pagoda.service
    /sys/fs/cgroup        /system.slice/pagoda.service, /system.slice and / each may have bounds

Bounds of a group hold for all groups inside it, so the least on the way up counts. A container sees
its own group as the root.
"""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def granted_cores() -> float | None:
    """Cores whose time is granted; None: all."""
    granted = [cores for group in _groups() if (cores := _cores(group)) is not None]
    return min(granted, default=None)


def free_bytes() -> int | None:
    """Memory that may still be taken; None: no group has a bound."""
    free = [size for group in _groups() if (size := _free(group)) is not None]
    return min(free, default=None)


def _groups() -> list[Path]:
    """Folders of the process's group and of those around it, as far as they are to be seen."""
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:
        lines = []
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    folder = _ROOT / own
    if ".." in folder.parts or not folder.is_dir():
        return [_ROOT]
    return [each for each in (folder, *folder.parents) if each.is_relative_to(_ROOT)]


def _cores(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _free(group: Path) -> int | None:
    """Files that were read, weights say, stay in memory until somebody needs the room."""
    limit, used = _figure(group / "memory.max"), _figure(group / "memory.current")
    if limit is None or used is None:
        return None
    return max(limit - used + _reclaimable(group), 0)


def _reclaimable(group: Path) -> int:
    try:
        text = (group / "memory.stat").read_text()
    except OSError:
        return 0
    figures = dict(line.split() for line in text.splitlines())
    return int(figures.get("inactive_file", 0))


def _figure(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # the root has no such file, and "max" is no bound
        return None
