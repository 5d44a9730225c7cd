"""The loss, from the paper's equations to a scalar; torch only.

Where each equation is:

- Eq. 1, the loss: :class:`unremix.core.objectives.InfoNCE`.
- Eq. 2 and 3, the pseudo-posterior p and the gradient at the last layer: p and the gradient δ at
  its output in :func:`unremix.core.scores.output_gradients`; the uncertainty, the inner product of
  two gradients, in :func:`unremix.core.scores.uncertainty`.
- Eq. 4, representativeness: :func:`unremix.core.scores.representativeness`.
- Eq. 5, the weights: :func:`unremix.core.weights.mix_scores`, which
  :func:`unremix.core.weights.weigh` calls.
- Algorithm 1: :func:`unremix.core.engines.eager.rows_loss` for some anchors, and
  :func:`unremix.core.contrast.contrast` for all.

``specification.py`` has all of it in one dense function. To read the rest, start with ``views``,
``pairs``, ``scores``, ``weights`` and ``objectives``; then ``engines/eager.py``, which puts them
together for some anchors; then ``problem`` and ``contrast``, which cut a loss into blocks. The
input of the last layer is found in ``last_layer/``.
"""
