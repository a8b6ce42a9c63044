"""What must hold of the counts at the end of the meters' demo, besides what holds of every use case."""

from riverrun.demo.final_counts import AlertCounts, FinalCounts


def wrong(final: FinalCounts) -> list[str]:
    """What must hold and does not."""
    sent, streams, high, told = final.sent, final.streams, final.streams["high_load"], final.alerts or AlertCounts()
    rules = {
        "every stream found all that is broken": all(
            stream.dead_letters == sent["broken"] for stream in streams.values()
        ),
        "no stream left out more as late than was sent late": all(
            stream.late <= sent["late"] for stream in streams.values()
        ),
        "every reading above 2 kW is a row of high_load": high.out == sent["above"],
        "every overload that fired was sent": told.sent == told.fired,
        "no owner is told twice": not told.duplicates,
    }
    return [what for what, holds in rules.items() if not holds]
