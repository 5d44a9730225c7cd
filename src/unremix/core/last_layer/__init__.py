"""The input h of the layer that makes the embeddings, which the uncertainty needs.

:mod:`~unremix.core.last_layer.watching` says where h comes from: read from autograd's graph
(``traced``) or recorded when the layer runs (``recorded``). ``sketch`` projects it to fewer
dimensions.
"""

from unremix.core.last_layer.recorded import recording
from unremix.core.last_layer.traced import LayerInputs
from unremix.core.last_layer.watching import LastLayer, Watched, watch

__all__ = ["LastLayer", "LayerInputs", "Watched", "recording", "watch"]
