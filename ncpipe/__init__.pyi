from ncpipe.integrations.monitor import CausalCollapseMonitor as CausalCollapseMonitor
from ncpipe.integrations.monitor import CollapseMonitor as CollapseMonitor
from ncpipe.metrics import functional as functional
from ncpipe.metrics.causal import measure_causal_lm as measure_causal_lm
from ncpipe.metrics.file import measure_file as measure_file
from ncpipe.metrics.hooks import collect_features as collect_features
from ncpipe.metrics.hooks import measure_model as measure_model
from ncpipe.metrics.hooks import measure_multilabel_model as measure_multilabel_model
from ncpipe.metrics.hooks import measure_regression_model as measure_regression_model
from ncpipe.metrics.measurements import Measurement as Measurement
from ncpipe.metrics.measurements import Measurements as Measurements
from ncpipe.metrics.regression import measure_regression as measure_regression
from ncpipe.metrics.table import measure as measure
from ncpipe.metrics.table import measure_batches as measure_batches
from ncpipe.metrics.table import measure_tokens as measure_tokens
from ncpipe.models.hook_points import channels_first as channels_first
from ncpipe.models.hook_points import channels_last as channels_last
from ncpipe.models.hook_points import last_token as last_token
from ncpipe.system.errors import InputError as InputError
from ncpipe.system.errors import MeasurementWarning as MeasurementWarning

__version__: str
