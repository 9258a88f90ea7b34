"""Where the texts of a plot lie, by an estimate of their width."""

from frozenprobe.reports.svg import CHARACTER

SVG = "{http://www.w3.org/2000/svg}"


def boxes(root, style):
    """Estimated (left, right, y) of every text of a class that is not turned."""
    found = []
    for text in root.iter(f"{SVG}text"):
        if style in text.get("class") and not text.get("transform"):
            x, y, width = float(text.get("x")), float(text.get("y")), CHARACTER * len(text.text)
            style_of = text.get("class").split()
            left = x - width if "end" in style_of else x if "start" in style_of else x - width / 2
            found.append((left, left + width, y))
    return found
