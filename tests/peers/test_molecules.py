"""Molecules from SMILES against RDKit itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unremix
from unremix.domains.graph.dataset import load_graphs

Chem = pytest.importorskip("rdkit.Chem", reason="pip install rdkit")

MOLECULES = {
    "ethanol": ("CCO", 1), "water": ("O", 0), "benzene": ("c1ccccc1", 1),
    "acetate": ("CC(=O)[O-]", 0), "salt": ("[Na+].[Cl-]", 0),
    "aspirin": ("CC(=O)Oc1ccccc1C(=O)O", 1),
}  # fmt: skip


def table(folder: Path, *more: str) -> Path:
    path = folder / "molecules.csv"
    rows = [f"{name},{smiles},{label}" for name, (smiles, label) in MOLECULES.items()]
    path.write_text("\n".join(["Name,SMILES,label", *rows, *more]) + "\n")
    return path


def test_graphs_are_the_atoms_and_bonds_of_rdkit(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"skipped 1 of 7: C1CC \(line 8"):
        found = load_graphs(table(tmp_path, "broken,C1CC,0"), progress=False)
    graphs, elements = found.train, found.encoding.labels[0]
    assert graphs.names == list(MOLECULES)
    assert graphs.labels is not None
    assert graphs.labels.tolist() == [label for _, label in MOLECULES.values()]
    for place, (smiles, _) in enumerate(MOLECULES.values()):
        batch = graphs.store.batch(torch.tensor([place]))
        molecule = Chem.MolFromSmiles(smiles)
        adjacency = torch.zeros(batch.x.shape[0], batch.x.shape[0])
        adjacency[batch.edge_index[0], batch.edge_index[1]] = 1
        assert adjacency.tolist() == Chem.GetAdjacencyMatrix(molecule).tolist()
        assert [elements[one] for one in batch.x.argmax(1).tolist()] == [
            atom.GetSymbol() for atom in molecule.GetAtoms()
        ]


def test_a_file_of_smiles_trains(tmp_path: Path) -> None:
    path = tmp_path / "all.smi"
    path.write_text("\n".join(f"{smiles} {name}" for name, (smiles, _) in MOLECULES.items()))
    run = unremix.train(
        data=str(path), domain="graph", recipe="graphcl", epochs=1, batch_size=3, progress=False,
        runs=str(tmp_path), accelerator="cpu", threads=1, graph={"hidden": 4, "layers": 1},
    )  # fmt: skip
    features = run.domain.features(run, run.domain.load_for(run, str(path)))
    assert features.names == list(MOLECULES)
    assert features.embeddings.shape[0] == len(MOLECULES)
