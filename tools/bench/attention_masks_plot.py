#!/usr/bin/env python3
"""Plots attention time against tile sparsity under column masks, from a report of
attention_masks_torch.py, and prints how well a straight line fits (R^2).

    attention_masks_plot.py tools/bench/results/attention_masks_h200.json \\
        --out tools/bench/results/attention_masks_h200.svg

Each family of masks is drawn as a series of points with its least-squares line. Needs only Python.
"""

import json

from runs import flag_parser

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 70, 20, 40, 60
COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#b9770e")


def fit(points):
    """Returns slope, intercept and R^2 of the least-squares line through the points (x, y)."""
    n = len(points)
    mean_x, mean_y = (sum(p[axis] for p in points) / n for axis in (0, 1))
    xx, xy, yy = (
        sum((p[a] - (mean_x, mean_y)[a]) * (p[b] - (mean_x, mean_y)[b]) for p in points)
        for a, b in ((0, 0), (0, 1), (1, 1))
    )
    return xy / xx, mean_y - xy / xx * mean_x, xy * xy / (xx * yy)


def series_of(document):
    """Returns {mask family: [(sparsity in per cent of all tiles, milliseconds)]}, least sparse
    first."""
    series = {}
    for row in document["by_share_seen"]:
        series.setdefault(row["family"], []).append(
            (100 * (1 - row["tiles"]), 1e-3 * row["quintet_us"])
        )
    return {family: sorted(points) for family, points in series.items()}


def draw(series, title):
    least = 5 * int(min(x for points in series.values() for x, _ in points) / 5)
    most = 1.08 * max(y for points in series.values() for _, y in points)

    def place(x, y):
        return (
            f"{LEFT + (x - least) / (100 - least) * (WIDTH - LEFT - RIGHT):.1f}",
            f"{HEIGHT - BOTTOM - y / most * (HEIGHT - TOP - BOTTOM):.1f}",
        )

    def text(x, y, words, anchor="middle", more=""):
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}" {more}>{words}</text>'

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(WIDTH / 2, 22, title, more='font-size="14"'),
    ]
    for x in range(least, 101, 10):
        at, low = place(x, 0)
        out += [
            f'<line x1="{at}" y1="{low}" x2="{at}" y2="{place(x, most)[1]}" stroke="#ddd"/>',
            text(at, float(low) + 18, x),
        ]
    step = next(s for s in (0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10, 20, 50) if most / s <= 9)
    for i in range(int(most / step) + 1):
        left, at = place(least, i * step)
        out += [
            f'<line x1="{left}" y1="{at}" x2="{place(100, 0)[0]}" y2="{at}" stroke="#ddd"/>',
            text(LEFT - 8, float(at) + 4, f"{i * step:g}", "end"),
        ]
    out += [
        text(
            WIDTH / 2,
            HEIGHT - 18,
            "tiles of 128 queries and 128 keys that are wholly hidden, per cent",
        ),
        text(0, 0, "milliseconds", more=f'transform="translate(20 {HEIGHT / 2}) rotate(-90)"'),
    ]
    for i, (family, points) in enumerate(series.items()):
        colour, (slope, intercept, r2) = COLOURS[i % len(COLOURS)], fit(points)
        (x1, y1), (x2, y2) = (
            place(x, max(0.0, intercept + slope * x)) for x in (points[0][0], points[-1][0])
        )
        out.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="1.5"/>'
        )
        out += [
            f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>'
            for x, y in (place(*point) for point in points)
        ]
        at = TOP + 18 + 18 * i
        out += [
            f'<circle cx="{WIDTH - 240}" cy="{at - 4}" r="4" fill="{colour}"/>',
            text(WIDTH - 228, at, f"{family}, R² = {r2:.4f}", "start"),
        ]
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = flag_parser(__doc__)
    parser.add_argument("report")
    parser.add_argument("--out", required=True, help="SVG file")
    args = parser.parse_args()
    with open(args.report) as file:
        document = json.load(file)
    series = series_of(document)
    for family, points in series.items():
        slope, intercept, r2 = fit(points)
        print(
            f"{family}: {len(points)} points, {-1e3 * slope:.1f} us less for each per cent of "
            f"tiles hidden, {1e3 * (intercept + 100 * slope):.0f} us if all were, R^2 {r2:.4f}"
        )
    title = (
        f"{document['device']}: forward attention, {document['dtype']}, {document['heads']} "
        f"heads of {document['head_dim']}, 16,384 tokens"
    )
    with open(args.out, "w") as file:
        file.write(draw(series, title))


if __name__ == "__main__":
    main()
