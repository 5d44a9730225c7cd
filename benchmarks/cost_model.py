"""What a step of several processes costs: bytes, floating-point operations, and seconds.

Pure functions of the job, the processes and the machine; docs/scaling.md states the assumptions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

NUMBER = 4  # bytes of a float32
PRODUCTS = 6  # of size anchors × candidates × D that a step of UnReMix's loss makes


@dataclass(frozen=True)
class Job:
    """A training.

    Args:
        batch: B, samples of all processes; each has two views.
        embedding: D.
        inputs: H, or the dimensions of its sketch; 0 without the uncertainty.
        parameters: Numbers with a gradient.
        sample_operations: Floating-point operations of a sample, both views, forward and backward.
    """

    batch: int
    embedding: int
    inputs: int
    parameters: int
    sample_operations: float


@dataclass(frozen=True)
class Machine:
    """What processes run on.

    Args:
        operations: Floating-point operations per second that a process reaches, running alone.
        at_once: Processes that run at the same time; more take turns. None: all.
        latency: Seconds of one message between two processes.
        bandwidth: Bytes per second that a process sends, and receives at the same time.
        per_node: Processes with the fast network among them; None: all.
        node_latency: Seconds of a message between nodes.
        node_bandwidth: Bytes per second of a process between nodes.
        hidden: The share of the encoder's backward pass behind which the gradients travel.
    """

    operations: float
    at_once: int | None = None
    latency: float = 0.0
    bandwidth: float = math.inf
    per_node: int | None = None
    node_latency: float = 0.0
    node_bandwidth: float = math.inf
    hidden: float = 0.0


@dataclass(frozen=True)
class Step:
    """Seconds of a step, by what takes them."""

    encoder: float
    loss: float
    gather: float
    gradients: float

    @property
    def total(self) -> float:
        return self.encoder + self.loss + self.gather + self.gradients


def all_gather_bytes(size: float, processes: int) -> float:
    """Bytes that each process receives, where all together hold ``size`` bytes."""
    return size * (processes - 1) / processes


def all_reduce_bytes(size: float, processes: int) -> float:
    """Bytes that each process receives, where each holds ``size`` bytes: those of two gathers."""
    return 2 * all_gather_bytes(size, processes)


def gathered_bytes(job: Job, processes: int) -> float:
    """Bytes of a step that a process receives for the negatives.

    z and h of both views, then δ where h is used; in the backward pass the gradient of all z.
    """
    rows = 2 * job.batch * NUMBER
    uncertainty = job.inputs + job.embedding if job.inputs else 0
    forward = all_gather_bytes(rows * (job.embedding + uncertainty), processes)
    return forward + all_reduce_bytes(rows * job.embedding, processes)


def gradient_bytes(job: Job, processes: int) -> float:
    """Bytes of a step that a process receives to average the gradients of the parameters."""
    return all_reduce_bytes(job.parameters * NUMBER, processes)


def loss_operations(job: Job, processes: int) -> float:
    """Operations of a process's anchors, 2B/W, against all 2B candidates, backward included."""
    pairs = (2 * job.batch / processes) * (2 * job.batch)
    return 2 * pairs * (PRODUCTS * job.embedding + job.inputs)


def encoder_operations(job: Job, processes: int) -> float:
    """Operations of a process's samples."""
    return job.sample_operations * job.batch / processes


def message_seconds(size: float, rounds: int, processes: int, machine: Machine) -> float:
    """Seconds of an exchange: ``rounds`` trees of messages, and ``size`` bytes at full speed."""
    if processes == 1:
        return 0.0
    across = machine.per_node is not None and processes > machine.per_node
    latency = machine.node_latency if across else machine.latency
    bandwidth = machine.node_bandwidth if across else machine.bandwidth
    return rounds * math.ceil(math.log2(processes)) * latency + size / bandwidth


def step_seconds(job: Job, processes: int, machine: Machine) -> Step:
    """How long a step takes.

    Args:
        job: The training.
        processes: W.
        machine: What it runs on.
    """
    turns = 1.0 if machine.at_once is None else max(1.0, processes / machine.at_once)
    encoder = turns * encoder_operations(job, processes) / machine.operations
    loss = turns * loss_operations(job, processes) / machine.operations
    views = 2 * (2 if job.inputs else 1)  # z, and h, of both views
    gathers = 1 + views + (2 if job.inputs else 0)  # the sizes of the batches before, δ after
    rounds = gathers + 2 * 2  # an all-reduce of the gradient of z goes forth and back
    gather = message_seconds(gathered_bytes(job, processes), rounds, processes, machine)
    gradients = message_seconds(gradient_bytes(job, processes), 2, processes, machine)
    behind = machine.hidden * encoder * 2 / 3  # backward is two thirds of it
    return Step(encoder, loss, gather, max(0.0, gradients - behind))
