"""What may be wrong with a store, its settings or this machine, so that cachec is slow, or finds and keeps nothing."""

from cachec.doctor.examination import Diagnosis, examine

__all__ = ["Diagnosis", "examine"]
