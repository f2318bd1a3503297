"""Differences of colours: CIEDE2000 (ΔE00), and reading the colours of a map."""

import numpy as np

__all__ = ["cell_colours", "difference", "luminance"]


def cell_colours(page, rows, columns, nth=0):
    """Return the colours at the centres of all cells of a map, `(rows, columns, 3)`."""
    flat = page.evaluate(
        """([rows, columns, nth]) => {
            const canvas = document.querySelectorAll("canvas.map")[nth];
            const ratio = canvas.width / canvas.clientWidth;
            const width = canvas.clientWidth - 102, height = canvas.clientHeight - 84;
            const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            const found = [];
            for (let row = 0; row < rows; row++) {
                for (let column = 0; column < columns; column++) {
                    const x = Math.floor((92 + (column + 0.5) / columns * width) * ratio);
                    const y = Math.floor((8 + (row + 0.5) / rows * height) * ratio);
                    const at = 4 * (y * canvas.width + x);
                    found.push((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]);
                }
            }
            return found.join();  // one text is sent faster than numbers
        }""",
        [rows, columns, nth],
    )
    codes = np.array(flat.split(","), int).reshape(rows, columns)
    return np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=-1)


def luminance(colours):
    """Return the relative luminance of sRGB colours."""
    return linear(colours) @ [0.2126729, 0.7151522, 0.0721750]


def linear(colours):
    share = np.asarray(colours) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def lab(colours):
    matrix = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    share = linear(colours) @ np.transpose(matrix) / [0.95047, 1, 1.08883]
    root = np.where(share > 216 / 24389, np.cbrt(share), (24389 / 27 * share + 16) / 116)
    x, y, z = np.moveaxis(root, -1, 0)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def difference(colours, other):
    """Return ΔE00 between sRGB colours (Sharma, Wu and Dalal 2005)."""
    (l1, a1, b1), (l2, a2, b2) = lab(colours), lab(other)
    mean = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    gain = 1.5 - 0.5 * np.sqrt(mean**7 / (mean**7 + 25.0**7))
    a1, a2 = a1 * gain, a2 * gain
    c1, c2 = np.hypot(a1, b1), np.hypot(a2, b2)
    h1, h2 = (np.degrees(np.arctan2(b, a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    grey = c1 * c2 == 0
    turn = np.where(grey, 0, (h2 - h1 + 180) % 360 - 180)
    hue = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2))
    total = h1 + h2
    middle = np.where(np.abs(h1 - h2) <= 180, total / 2, np.where(total < 360, total / 2 + 180, total / 2 - 180))
    middle = np.where(grey, total, middle)
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    t = (
        1
        - 0.17 * np.cos(np.radians(middle - 30))
        + 0.24 * np.cos(np.radians(2 * middle))
        + 0.32 * np.cos(np.radians(3 * middle + 6))
        - 0.20 * np.cos(np.radians(4 * middle - 63))
    )
    s_light = 1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2)
    s_chroma, s_hue = 1 + 0.045 * chroma, 1 + 0.015 * chroma * t
    rotation = -np.sin(np.radians(60 * np.exp(-(((middle - 275) / 25) ** 2))))
    rotation = rotation * 2 * np.sqrt(chroma**7 / (chroma**7 + 25.0**7))
    dl, dc, dh = (l2 - l1) / s_light, (c2 - c1) / s_chroma, hue / s_hue
    return np.sqrt(dl**2 + dc**2 + dh**2 + rotation * dc * dh)
