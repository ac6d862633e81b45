from ncpipe.config.bounds import Bound as Bound
from ncpipe.config.bounds import Count as Count
from ncpipe.config.bounds import Fraction as Fraction
from ncpipe.config.bounds import Index as Index
from ncpipe.config.bounds import NonNegative as NonNegative
from ncpipe.config.bounds import Positive as Positive
from ncpipe.config.params import load_params as load_params
from ncpipe.config.params import make_run as make_run
from ncpipe.config.run import Run as Run
from ncpipe.config.specs import OwnData as OwnData
from ncpipe.config.specs import OwnLoss as OwnLoss
from ncpipe.config.specs import OwnModel as OwnModel
from ncpipe.config.specs import OwnOptimizer as OwnOptimizer
from ncpipe.config.specs import OwnTraining as OwnTraining
from ncpipe.config.stages import Stage as Stage
from ncpipe.datasets.prepare import prepare_data as prepare_data
from ncpipe.datasets.prepared import Prepared as Prepared
from ncpipe.datasets.prepared import Split as Split
from ncpipe.features.trained_run import TrainedRun as TrainedRun
from ncpipe.figures import drawing as drawing
from ncpipe.metrics.catalogue import Metric as Metric
from ncpipe.models.inputs import patches as patches
from ncpipe.models.loss_functions import cross_entropy as cross_entropy
from ncpipe.models.loss_functions import half_squared_error as half_squared_error
from ncpipe.models.network import Family as Family
from ncpipe.models.network import Layer as Layer
from ncpipe.models.network import Network as Network
from ncpipe.models.network import init_weights as init_weights
from ncpipe.runs.trained_runs import train_runs as train_runs
from ncpipe.runs.trained_runs import trained_runs as trained_runs
from ncpipe.system.errors import InputError as InputError
from ncpipe.system.randomness import seeded_generator as seeded_generator
from ncpipe.tables.stage_tables import stage_table as stage_table
from ncpipe.theory import frames as frames
from ncpipe.theory import gufm as gufm
from ncpipe.theory import numerical as numerical
from ncpipe.theory import regression as regression
from ncpipe.theory import ufm as ufm
from ncpipe.training.hooked import Hooked as Hooked
from ncpipe.training.own_loop import Training as Training

HOMES: dict[str, str]
MODULES: dict[str, str]
__all__: list[str]
