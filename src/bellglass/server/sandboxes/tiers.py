"""Which isolation a create gets: exact, a minimum, or the strongest that the node has proven.

Never a silent fallback: a refusal says why and how to get it.
"""

from __future__ import annotations

from collections.abc import Sequence

from bellglass.errors import InvalidRequest, NotSupported
from bellglass.model import TIER_ORDER, Tier, TierReport
from bellglass.server.http.validation import did_you_mean, shown


def choose_tier(isolation: str | None, at_least: str | None, reports: Sequence[TierReport]) -> str:
    """The tier's name. Raises InvalidRequest for a name that is none, NotSupported with why and how to get it."""
    usable = {report.tier for report in reports if report.usable}
    if isolation is not None and at_least is not None:
        raise InvalidRequest(
            "isolation and at_least exclude each other", hint="give one of them", details={"field": "isolation"}
        )
    if isolation is not None:
        wanted = _named("isolation", isolation, tuple(Tier))
        if wanted not in usable:
            raise _not_here(f"isolation: {shown(isolation)} is not usable on the node", wanted, reports, usable)
        return wanted
    floor = 0
    if at_least is not None:
        floor = TIER_ORDER.index(_named("at_least", at_least, TIER_ORDER))
    for tier in reversed(TIER_ORDER[floor:]):
        if tier in usable:
            return tier
    if at_least is None:
        raise _not_here("no isolation tier is usable on the node", None, reports, usable)
    raise _not_here(
        f"at_least: the node has nothing as strong as {shown(at_least)}", TIER_ORDER[floor], reports, usable
    )


def _named(field: str, value: str, tiers: Sequence[Tier]) -> Tier:
    for tier in tiers:
        if tier == value:
            return tier
    names = [str(tier) for tier in tiers]
    hint = did_you_mean(value, names) or f"one of: {', '.join(names)}"
    if value == Tier.MICROVM_EMULATED:
        hint = "emulated machines are outside of the order: ask for one with `isolation`"
    raise InvalidRequest(f"{field}: {shown(value)} is not a tier", hint=hint, details={"field": field})


def _not_here(message: str, wanted: Tier | None, reports: Sequence[TierReport], usable: set[str]) -> NotSupported:
    reasons = [f"{report.tier} ({report.runtime}): {report.reason}" for report in reports if _tells(report, wanted)]
    hints = [report.hint for report in reports if _tells(report, wanted) and report.hint]
    told = f"{message}: {'; '.join(reasons)}" if reasons else message
    there = f"usable here: {', '.join(sorted(usable)) or 'none'}"
    return NotSupported(told, hint="; ".join([*hints, there]), details={"field": "isolation", "usable": sorted(usable)})


def _tells(report: TierReport, wanted: Tier | None) -> bool:
    return not report.usable and report.reason is not None and (wanted is None or report.tier == wanted)
