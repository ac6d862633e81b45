"""Define what the specs of S25's two families of networks share."""

from ncpipe.config.architectures.architecture import Architecture

TWO_LAYER_MLPS = ("L-RN2", "L-T12", "L-T22")


class PaperArchitecture(Architecture):
    """Residual networks with LN whose blocks end in one- or two-layer MLPs [S25 Def. 3.1, 3.2, B.1, B.2]."""

    width: int
    layer_norm_eps: float
    gain: float
    mlp_width: int | None

    @property
    def starts_built(self) -> bool:
        return self.initialisation == "construction"

    @property
    def uniform(self) -> bool:
        """Whether weights are drawn from a uniform distribution, not a normal one."""
        return self.initialisation == "uniform"

    @property
    def bounds_features(self) -> bool:
        return True

    @property
    def feature_width(self) -> int:
        return self.width

    def __post_init__(self) -> None:
        # mlp_width is given for two-layer MLPs, and only for them.
        two_layers = self.architecture in TWO_LAYER_MLPS
        if two_layers and self.mlp_width is None:
            raise ValueError(f"mlp_width is needed: {self.architecture} has two-layer MLPs")
        if not two_layers and self.mlp_width is not None:
            raise ValueError(f"mlp_width does not apply: {self.architecture} has one-layer MLPs; remove it")
