"""Plots of lines as SVG, which browsers and viewers of pictures show. Imported."""

import dataclasses
import html
import math

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 44, 50  # margins; the legend is in the right one
# Told apart by those who see few colours as well (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#56b4e9", "#e69f00", "#009e73", "#cc79a7")
TICKS_MOST = 6
TICKS_APART = 32  # across, for their texts

Point = tuple[float, float]


def round_ticks(most: float) -> list[float]:
    """0 and multiples of 1, 2 or 5 times a power of ten, up to `most`."""
    if most <= 0:
        return [0.0]
    power = 10 ** math.floor(math.log10(most / TICKS_MOST))
    step = next(power * factor for factor in (1, 2, 5, 10)
                if most / (power * factor) <= TICKS_MOST)
    return [step * index for index in range(math.floor(most / step + 1e-9) + 1)]


def tick_text(value: float) -> str:
    """Multiples of 1024 as such: 32768 is 32k."""
    if value >= 1024 and value % 1024 == 0:
        return f"{value / 1024:g}k"
    return f"{value:g}"


def text_at(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{html.escape(text)}</text>'


def line_between(start: Point, end: Point, more: str) -> str:
    return (f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
            f'{more}/>')


@dataclasses.dataclass
class Plot:
    title: str
    x_label: str
    y_label: str
    lines: dict[str, list[Point]]  # by name, each by ascending x; y from 0 on
    x_by_ratio: bool = False       # twice as much is as far everywhere; x above 0

    def svg(self) -> str:
        if not self._points:
            raise ValueError(f"{self.title}: nothing to plot")
        body = [text_at(LEFT, 18, self.title, ' font-weight="bold"'), *self._x_axis(),
                *self._y_axis()]
        for index, (name, line) in enumerate(self.lines.items()):
            colour = COLOURS[index % len(COLOURS)]
            body += self._line(colour, line)
            y = TOP + 10 + 20 * index
            body.append(line_between((WIDTH - RIGHT + 12, y), (WIDTH - RIGHT + 32, y),
                                     f'stroke="{colour}" stroke-width="2"'))
            body.append(text_at(WIDTH - RIGHT + 38, y + 4, name))
        inside = "\n".join(body)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
                f'font-family="sans-serif" font-size="12">\n'
                f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{inside}\n</svg>\n')

    @property
    def _points(self) -> list[Point]:
        return [point for line in self.lines.values() for point in line]

    def _place(self, x: float, y: float) -> Point:
        """In the picture."""
        xs = [point[0] for point in self._points]
        scale = math.log2 if self.x_by_ratio else float
        start, end = scale(min(xs)), scale(max(xs))
        across = (scale(x) - start) / (end - start) if end > start else 0
        most = max(point[1] for point in self._points)
        up = y / most if most > 0 else 0
        return (LEFT + across * (WIDTH - LEFT - RIGHT),
                HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM))

    def _x_axis(self) -> list[str]:
        made = [text_at((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, self.x_label,
                        ' text-anchor="middle"')]
        last = -math.inf
        for value in sorted({point[0] for point in self._points}):
            x, y = self._place(value, 0)
            if x - last < TICKS_APART:
                continue
            last = x
            made.append(text_at(x, y + 18, tick_text(value), ' text-anchor="middle"'))
        return made

    def _y_axis(self) -> list[str]:
        made = [text_at(LEFT, TOP - 8, self.y_label)]
        x = min(point[0] for point in self._points)
        for value in round_ticks(max(point[1] for point in self._points)):
            _, y = self._place(x, value)
            made.append(line_between((LEFT, y), (WIDTH - RIGHT, y), 'stroke="#ddd"'))
            made.append(text_at(LEFT - 8, y + 4, tick_text(value), ' text-anchor="end"'))
        return made

    def _line(self, colour: str, line: list[Point]) -> list[str]:
        places = [self._place(x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
                *dots]
