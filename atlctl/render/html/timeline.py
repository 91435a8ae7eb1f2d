"""Who failed when, as one strip of SVG for each worker. Places are percentages: texts and shapes keep their size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from atlctl.render.html.markup import Html, element, joined
from atlctl.render.html.model import Lane, Mark, Sort, Timeline

_HEIGHT, _LOW, _MANY = 30, 18, 20
#: Percent at both sides, so that a shape at an end is whole.
_MARGIN = 2.0
_MOST_TICKS = 6
#: A whole run that is so many times as long as its failure is drawn beside it.
_WORTH_BOTH = 4.0
#: Lanes of a whole run that are open at once.
_OPEN = 24
_LABEL = 400
_STEPS = (
    *(base * 10**power for power in range(-3, 1) for base in (1, 2, 5)),
    *(10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800),
    *(86400 * days for days in (1, 2, 5, 10, 20, 50, 100, 500, 2000, 10000)),
)
_PATHS: Mapping[Sort, str] = {
    "root": "M0-8L8 0L0 8L-8 0Z",
    "failure": "M0-7L7 6L-7 6Z",
    "victim": "M-5.5 0A5.5 5.5 0 1 0 5.5 0A5.5 5.5 0 1 0-5.5 0Z",
    "ended": "M-4.5-4.5H4.5V4.5H-4.5Z",
    "agent": "M-5-5H5V5H-5Z",
    "earlier": "M0-7L7 0L0 7L-7 0Z",
    "restart": "M-2.5-8V8M2.5-8V8",
    "signal": "M-6-6L6 6M-6 6L6-6",
    "state": "M-5.5-5H5.5L0 5Z",
    "event": "M-6 0H6M0-6V6",
}
#: What is drawn on top of what.
_ORDER: tuple[Sort, ...] = (
    *("event", "state", "restart", "ended", "agent", "victim", "earlier", "signal", "failure", "root"),
)


def draw(timeline: Timeline, words: Mapping[str, str]) -> Html:
    """The failure and what followed; where the run was much longer, the whole of it as well."""
    begin, end = timeline.focus
    whole = max(timeline.end - timeline.begin, 0.0)
    both = whole > _WORTH_BOTH * (end - begin)
    if not both:
        begin, end = min(begin, timeline.begin), max(end, timeline.end)
    parts: list[Html | None] = [_legend(timeline.lanes, words)]
    zero = words["zero"].format(time=timeline.zero_utc) if timeline.zero_utc else words["zero unknown"]
    parts.append(element("p", zero, class_="soft"))
    if both:
        parts.append(element("h3", words["around the failure"]))
    parts.append(_strips(timeline, begin, end, _HEIGHT if len(timeline.lanes) <= _OPEN else _MANY))
    if both:
        strips = _strips(timeline, timeline.begin, timeline.end, _LOW)
        opened = "open" if len(timeline.lanes) <= _OPEN else None
        parts.append(element("details", element("summary", words["whole run"]), strips, open=opened))
    parts.append(element("ul", [element("li", note) for note in timeline.notes]) if timeline.notes else None)
    return joined(parts)


class _Scale:
    """From seconds to percent."""

    def __init__(self, begin: float, end: float) -> None:
        if end - begin < 0.01:  # one moment: it stands in the middle
            begin, end = begin - 0.5, end + 0.5
        self.begin, self.end = begin, end

    def __call__(self, time: float) -> float:
        share = (min(max(time, self.begin), self.end) - self.begin) / (self.end - self.begin)
        return round(_MARGIN + share * (100 - 2 * _MARGIN), 3)

    def holds(self, time: float) -> bool:
        return self.begin <= time <= self.end


def _strips(timeline: Timeline, begin: float, end: float, height: int) -> Html:
    scale = _Scale(begin, end)
    ticks = ticks_of(scale.begin - timeline.zero, scale.end - timeline.zero)
    lines = [(scale(timeline.zero + at), shown) for at, shown in ticks]
    axis = element(
        "svg",
        [element("text", shown, x=f"{at}%", y=15, text_anchor="middle", class_="tick") for at, shown in lines],
        [element("line", x1=f"{at}%", x2=f"{at}%", y1=19, y2=24, class_="grid") for at, _ in lines],
        width="100%",
        height=24,
        aria_hidden="true",
    )
    grid = joined(element("line", x1=f"{at}%", x2=f"{at}%", y1=0, y2=height, class_="grid") for at, _ in lines)
    if scale.holds(timeline.zero):
        at = f"{scale(timeline.zero)}%"
        grid = joined([grid, element("line", x1=at, x2=at, y1=0, y2=height, class_="zero")])
    head = element("div", element("div", class_="who"), axis, class_="lane axis")
    return element("div", head, [_lane(lane, scale, grid, height) for lane in timeline.lanes], class_="strips")


def _lane(lane: Lane, scale: _Scale, grid: Html, height: int) -> Html:
    middle = height / 2
    drawn: list[Html] = []
    if lane.begin is not None and lane.end is not None and lane.begin <= scale.end and lane.end >= scale.begin:
        left, right = scale(lane.begin), scale(lane.end)
        thick = height / 5
        width = f"{max(right - left, 0.3):g}%"
        drawn.append(element("rect", x=f"{left}%", y=middle - thick / 2, width=width, height=thick, rx=2, class_="bar"))
        if scale.holds(lane.end):
            x = f"{right}%"
            drawn.append(element("line", x1=x, x2=x, y1=middle - thick, y2=middle + thick, class_="stop"))
    shown = [mark for mark in lane.marks if mark.time <= scale.end and (mark.until or mark.time) >= scale.begin]
    shown.sort(key=lambda mark: (_ORDER.index(mark.sort), mark.time))
    drawn += [_mark(mark, scale, height) for mark in shown]
    told = "; ".join(mark.told for mark in sorted(lane.marks, key=lambda mark: mark.time))
    svg = element(
        "svg", grid, drawn, width="100%", height=height, role="img", aria_label=f"{lane.name}: {told}"[:_LABEL]
    )
    note = element("small", lane.note) if lane.note else None
    who = element("div", lane.name, note, class_="who", title=lane.name)
    return element("div", who, svg, class_="lane culprit" if lane.culprit else "lane")


def _mark(mark: Mark, scale: _Scale, height: int) -> Html:
    at = scale(mark.time)
    span = None
    if mark.until is not None and scale(mark.until) - at > 0.2:
        span = element("line", x1=f"{at}%", x2=f"{scale(mark.until)}%", y1=height / 2, y2=height / 2, class_="span")
    size = "" if height == _HEIGHT else "0.8" if height == _MANY else "0.7"
    shape = element("path", d=_PATHS[mark.sort], class_=f"m {mark.sort}", transform=f"scale({size})" if size else None)
    place = element("svg", shape, x=f"{at}%", y=height / 2, overflow="visible") if scale.holds(mark.time) else None
    return element("g", element("title", mark.told), span, place)


def _legend(lanes: Sequence[Lane], words: Mapping[str, str]) -> Html:
    used = {mark.sort for lane in lanes for mark in lane.marks}
    items = []
    for sort in reversed(_ORDER):
        if sort in used:
            path = element("path", d=_PATHS[sort], class_=f"m {sort}")
            icon = element("svg", path, viewBox="-10 -10 20 20", width=18, height=18, aria_hidden="true")
            items.append(element("li", icon, words[f"mark {sort}"]))
    line = element("line", x1=0, x2=0, y1=-6, y2=6, class_="stop")
    icon = element("svg", line, viewBox="-10 -10 20 20", width=18, height=18, aria_hidden="true")
    items.append(element("li", icon, words["mark last"]))
    return element("ul", items, class_="legend")


def ticks_of(begin: float, end: float) -> list[tuple[float, str]]:
    """Round offsets in seconds between the two, and what to write at them."""
    step = next((step for step in _STEPS if (end - begin) / step <= _MOST_TICKS), _STEPS[-1])
    first, last = math.ceil(begin / step - 1e-9), math.floor(end / step + 1e-9)
    if last - first > 2 * _MOST_TICKS:
        return []
    return [(count * step, _offset(count * step, step)) for count in range(first, last + 1)]


def _offset(seconds: float, step: float) -> str:
    if abs(seconds) < step / 2:
        return "0"
    if step < 60:
        digits = max(0, math.ceil(-math.log10(step) - 1e-9))
        return f"{seconds:+.{digits}f} s"
    if step < 3600:
        return f"{seconds / 60:+.0f} min"
    return f"{seconds / 3600:+.0f} h" if step < 86400 else f"{seconds / 86400:+.0f} d"
