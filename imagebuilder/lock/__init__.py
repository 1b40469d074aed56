"""Exactly what is used: a Stack resolved to files and their sha256."""

from imagebuilder.lock.fresh import check_fresh
from imagebuilder.lock.model import DebPackage, Lock, LockedBase, Wheel
from imagebuilder.lock.pylock import read_lock, write_lock

__all__ = ["DebPackage", "Lock", "LockedBase", "Wheel", "check_fresh", "read_lock", "write_lock"]
