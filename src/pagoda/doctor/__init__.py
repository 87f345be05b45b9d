"""The doctor: what a running engine's metrics say, and what should change."""

from pagoda.doctor.bandwidth import Machine
from pagoda.doctor.diagnosis import Advice, Answer, Diagnosis, Evidence, Finding
from pagoda.doctor.examine import examine
from pagoda.doctor.scrape import ENGINES, Scrape, read_scrape
from pagoda.doctor.window import Window

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
