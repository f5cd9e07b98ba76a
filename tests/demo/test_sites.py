from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from fedpref.data import (
    Annotation,
    SiteDirectory,
    case_mix_divergence,
    check_site,
    site_directories,
)
from fedpref.data.cohort import case_labels
from fedpref.data.text import duplicate_key, normalise_report
from fedpref.demo.sites import (
    SHARES,
    DemoSettings,
    content_key,
    ensure_demo_sites,
    write_demo_sites,
)
from fedpref.preference import read_pairs
from fedpref.task import Structure

SMALL = DemoSettings(train_reports=60, dev_reports=50, test_reports=25)


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    paths = write_demo_sites(folder)
    assert [check_site(path) for path in paths] == [[]] * len(SHARES)
    assert site_directories(folder) == paths
    return [SiteDirectory.load(path) for path in paths]


def test_sizes_follow_the_shares_and_every_site_has_forty_dev_reports(sites):
    settings = DemoSettings()
    for split, count in settings.splits():
        sizes = [len(site.split(split)) for site in sites]
        assert sum(sizes) == count
        assert np.abs(np.array(sizes) - np.array(SHARES) * count).max() <= 2
    assert min(len(site.split("dev")) for site in sites) >= 40


def test_patients_and_texts_keep_to_one_site_and_one_split(sites):
    where = Counter()
    for site in sites:
        for patient, split in {(r.patient_id, r.split) for r in site.reports}:
            where[patient] += 1
            assert split in patient
    assert set(where.values()) == {1}
    texts = [duplicate_key(report.text) for site in sites for report in site.reports]
    assert len(texts) == len(set(texts))
    assert len(where) < len(texts)  # some patients have two reports


def test_sites_are_marked_synthetic_and_texts_are_normalised(sites):
    for site in sites:
        assert site.info.synthetic
        assert "synthetic demo data" in site.description
        assert all(normalise_report(r.text) == r.text for r in site.reports)
        for report in site.split("dev"):
            structure = site.annotations[report.report_id].structure
            assert Structure.from_json(structure.to_json()) == structure


def test_sites_differ_in_case_mix_more_than_chance(sites):
    labels = [
        case_labels([site.annotations[r.report_id] for r in site.split("train")]) for site in sites
    ]
    sizes = [len(rows) for rows in labels]
    skewed = case_mix_divergence(sizes, [rows.mean(axis=0) for rows in labels])
    mixed = np.random.default_rng(0).permutation(np.concatenate(labels))
    parts = np.split(mixed, np.cumsum(sizes)[:-1])
    assert skewed > 1.3 * case_mix_divergence(sizes, [rows.mean(axis=0) for rows in parts])


def test_labels_are_diseases_in_order_then_normal():
    labels = case_labels(
        [Annotation("a", Structure()), Annotation("b", Structure(["pneumonia", "lung opacity"]))]
    )
    assert labels.shape == (2, 10)
    assert labels[0].nonzero()[0].tolist() == [9]
    assert labels[1].nonzero()[0].tolist() == [0, 8]


def test_the_same_seed_writes_the_same_bytes(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_demo_sites(tmp_path / name, settings=SMALL, seed=seed)
    contents = [
        {
            path.relative_to(tmp_path / name): path.read_bytes()
            for path in (tmp_path / name).rglob("*.jsonl")
        }
        for name in "abc"
    ]
    assert contents[0] == contents[1] != contents[2]
    assert content_key(SMALL, 1) != content_key(SMALL, 2) != content_key(DemoSettings(), 2)


def ensured(root):
    return ensure_demo_sites(root, settings=SMALL, seed=3)


def test_several_processes_at_once_make_the_sites_once(tmp_path):
    with get_context("spawn").Pool(2) as processes, ThreadPoolExecutor(2) as threads:
        waiting = [processes.apply_async(ensured, (tmp_path,)) for _ in range(2)]
        folders = list(threads.map(ensured, [tmp_path] * 2))
        folders += [result.get(timeout=120) for result in waiting]
    assert len(set(folders)) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([".lock", folders[0].name])
    before = folders[0].stat().st_ino
    assert ensured(tmp_path).stat().st_ino == before
    sites = [SiteDirectory.load(path) for path in site_directories(folders[0])]
    assert len(sites) == 6
    assert sum(len(read_pairs(site)) for site in sites) > 40


def test_without_a_root_the_sites_stand_in_fedpref_home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPREF_HOME", str(tmp_path / "home"))
    folder = ensure_demo_sites(settings=DemoSettings(30, 30, 30))
    assert folder.parent == tmp_path / "home" / "demo"
