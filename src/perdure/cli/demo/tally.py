"""What the demonstration comes to: for programs, and for people."""

from typing import Any

from rich.text import Text

from perdure.cli.demo.director import Course


def tally(course: Course) -> dict[str, Any]:
    """Add up what the acts came to."""
    outcomes = course.outcomes
    counted: dict[str, Any] = {
        "jobs": course.jobs,
        "steps": sum(each.steps for each in outcomes),
        "kills": course.kills,
        "effects": course.effects,
        "lost": sum(each.lost for each in outcomes),
        "duplicates": sum(each.duplicates for each in outcomes),
        "requests_repeated": course.requests_repeated,
        "seconds": round(course.seconds, 1),
    }
    for each in outcomes:
        counted |= each.more
    return counted


def is_good(counted: dict[str, Any]) -> bool:
    """Tell whether nothing was lost or doubled."""
    return not counted["lost"] and not counted["duplicates"]


def verdict(counted: dict[str, Any]) -> Text:
    """Say it in two lines."""
    if not is_good(counted):
        text = f"{counted['lost']} lost, {counted['duplicates']} doubled: that must not be."
        return Text(text, style="bold red")
    jobs = sum(counted["jobs"].values())
    return Text.assemble(
        ("Nothing lost, nothing doubled", "bold green"),
        f": {jobs} jobs, {counted['steps']} steps, {counted['effects']} effects and "
        f"{counted['kills']} kills in {counted['seconds']:.0f} s.\n"
        f"The world was asked {counted['requests_repeated']} times for what it had done already, "
        "each time with the same key:\nso it did nothing twice.",
    )
