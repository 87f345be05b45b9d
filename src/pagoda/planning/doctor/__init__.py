"""The doctor: what a running engine's metrics say, and what should change."""

from pagoda.planning.doctor.bandwidth import Machine
from pagoda.planning.doctor.diagnosis import Advice, Answer, Diagnosis, Evidence, Finding
from pagoda.planning.doctor.examine import examine
from pagoda.planning.doctor.scrape import ENGINES, Scrape, read_scrape
from pagoda.planning.doctor.window import Window

__all__ = [
    "ENGINES",
    "Advice",
    "Answer",
    "Diagnosis",
    "Evidence",
    "Finding",
    "Machine",
    "Scrape",
    "Window",
    "examine",
    "read_scrape",
]
