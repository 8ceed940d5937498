"""What every group of settings is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Group(BaseModel):
    """Frozen, and without a name that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")
