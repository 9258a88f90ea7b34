"""The colours of runs stay apart for every reader."""

from itertools import combinations

import numpy as np
import pytest

from frozenprobe.reports.themes import COLOURED, THEMES

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009), severity 1.
SEEN_BY = {
    "all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no red cones": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green cones": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue cones": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
# Linear sRGB to cones to OKLab (Björn Ottosson, 2020).
TO_CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
TO_LAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]


def oklab(colour, seen_by):
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(SEEN_BY[seen_by]) @ linear, 0, 1)
    return np.array(TO_LAB) @ np.cbrt(np.array(TO_CONES) @ seen)


def test_the_scale_is_right():
    assert oklab("#ffffff", "all cones") == pytest.approx([1, 0, 0], abs=1e-3)
    assert np.linalg.norm(oklab("#c2410c", "no green cones") - oklab("#92700c", "no green cones")) < 0.02  # known bad


@pytest.mark.parametrize("seen_by", SEEN_BY)
@pytest.mark.parametrize("theme", THEMES)
def test_no_two_runs_look_alike(theme, seen_by):
    colours = [oklab(THEMES[theme][f"c{i}"], seen_by) for i in range(COLOURED)]
    assert min(np.linalg.norm(one - other) for one, other in combinations(colours, 2)) > 0.08
