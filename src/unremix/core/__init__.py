"""The loss, from the paper's equations to a scalar; torch only.

Where each equation is:

- Eq. 1, the loss: :class:`unremix.core.objectives.InfoNCE`.
- Eq. 2, the pseudo-label and its gradient δ: :func:`unremix.core.scores.residuals`.
- Eq. 3, uncertainty: :func:`unremix.core.scores.uncertainty`.
- Eq. 4, representativeness: :func:`unremix.core.scores.representativeness`.
- Eq. 5, the weights: :func:`unremix.core.weights.weigh`.
- Algorithm 1: :func:`unremix.core.rows.rows_loss` for some anchors, and
  :func:`unremix.core.contrast.contrast` for all.

``specification.py`` has all of it in one dense function. To read the rest, start with ``pairs``,
``scores``, ``weights`` and ``objectives``; then ``problem``, ``rows``, ``residuals`` and
``contrast``, which put them together; then ``engines``, which evaluate a block of anchors.
"""
