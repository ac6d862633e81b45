"""Construct circular arcs on LN's sphere, and measure how near they come to other points.

The sphere is {x in R^d : |x| = sqrt(d), x^T 1 = 0}. A geodesic is the arc of a great circle; the arc through
a third point is the detour of a sample that has another one in its way. Arcs are smooth, and none is longer
than the great circle, 2 pi sqrt(d): the curvature and length that S25 App. A asks of its curves.

d  width    M  points    T  places on an arc    all float64
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Arc:
    """x(t) = centre + radius (cos t first + sin t second), 0 <= t <= angle.

    centre, first, second: (d,); the latter two orthonormal. angle: in radians at the arc's own centre.
    """

    centre: Tensor
    first: Tensor
    second: Tensor
    radius: float
    angle: float

    @property
    def length(self) -> float:
        return self.radius * self.angle

    @property
    def end(self) -> Tensor:
        return self.at(torch.tensor([self.angle], dtype=torch.float64))[0]

    def at(self, t: Tensor) -> Tensor:
        """Return points (T, d) at t (T,)."""
        circle = torch.cos(t).unsqueeze(1) * self.first + torch.sin(t).unsqueeze(1) * self.second
        return self.centre + self.radius * circle

    def nearest_products(self, points: Tensor) -> Tensor:
        """Return for each y of points (M, d) the maximum over the arc of x^T y, (M,).

        On the circle x(t)^T y = a + r cos(t - phi); its maximum a + r counts where phi lies on the arc, else
        the larger of the two ends.
        """
        along, across = points @ self.first, points @ self.second
        peak = torch.atan2(across, along).remainder(2 * math.pi)
        height = torch.where(peak <= self.angle, torch.hypot(along, across), -math.inf)
        end = along * math.cos(self.angle) + across * math.sin(self.angle)
        return points @ self.centre + self.radius * torch.stack([height, along, end]).amax(0)


def arc_between(start: Tensor, end: Tensor, through: Tensor | None = None) -> Arc:
    """Return the arc from `start` to `end` on their sphere: the geodesic, or through a third point.

    All (d,), of one length; start and end neither equal nor opposite, the three points distinct.
    """
    if through is None:
        centre = torch.zeros_like(start)
    else:
        sides = torch.stack([through - start, end - start])
        weights = torch.linalg.solve(sides @ sides.T, sides @ start)
        centre = start - weights @ sides  # the origin's projection on the plane of the three points
    spoke = start - centre
    radius = spoke.norm().item()
    first = spoke / radius
    second = (end - centre) - ((end - centre) @ first) * first
    second = second / second.norm()
    if through is not None and _angle(through - centre, first, second) > _angle(end - centre, first, second):
        second = -second
    return Arc(centre, first, second, radius, _angle(end - centre, first, second))


def cut_at(arc: Arc, end: Tensor, level: float) -> Arc:
    """Cut the arc where x^T end reaches `level` for the last time; `end` (d,) is its end point."""
    along, across = (arc.first @ end).item(), (arc.second @ end).item()
    reach = (level - (arc.centre @ end).item()) / (arc.radius * math.hypot(along, across))
    angle = arc.angle - math.acos(max(-1.0, min(1.0, reach)))
    return Arc(arc.centre, arc.first, arc.second, arc.radius, max(angle, 0.0))


def _angle(spoke: Tensor, first: Tensor, second: Tensor) -> float:
    """Return the angle of a spoke (d,) in the plane of first and second, in [0, 2 pi)."""
    return math.atan2((spoke @ second).item(), (spoke @ first).item()) % (2 * math.pi)
