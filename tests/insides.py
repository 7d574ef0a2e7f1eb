"""What tests read of a session that no program may: in one place, so that a change of it is a change of one line."""

from __future__ import annotations

from typing import Any


def state_of(session: Any) -> Any:
    """The provider's state in a session, with its partitions; None where it has none."""
    return session.state
