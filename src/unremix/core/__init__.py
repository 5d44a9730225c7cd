"""The loss, from the paper's equations to a scalar; torch only.

Where each equation is:

- Eq. 1, the loss: :class:`unremix.core.objectives.InfoNCE`.
- Eq. 2 and 3, the pseudo-posterior p and the gradient at the last layer: p and the gradient δ at
  its output in :func:`unremix.core.scores.output_gradients`; the uncertainty, the inner product of
  two gradients, in :func:`unremix.core.scores.uncertainty`.
- Eq. 4, representativeness: :func:`unremix.core.scores.representativeness`.
- Eq. 5, the weights: :func:`unremix.core.weights.mix_scores`, which
  :func:`unremix.core.weights.weigh` calls.
- Algorithm 1: :func:`unremix.core.rows.rows_loss` for some anchors, and
  :func:`unremix.core.contrast.contrast` for all.

``specification.py`` has all of it in one dense function. To read the rest, start with ``pairs``,
``views``, ``scores``, ``weights`` and ``objectives``; then ``options``, ``problem``, ``rows``,
``output_gradients`` and ``contrast``, which put them together; then ``engines``, which evaluate a
block of anchors.
"""
