"""``python -m tests.guards`` writes docs/explanation/guards.md."""

from __future__ import annotations

from tests.guards.guards import GUARDS
from tests.guards.page import PAGE, page

PAGE.write_text(page(GUARDS), "utf-8")
print(f"wrote {PAGE} with {len(GUARDS)} guards")
