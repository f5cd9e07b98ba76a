"""Reports and annotations: records, site directories, readers, partition into sites."""

from fedpref.data.divergence import PermutationTest, case_mix_divergence, permutation_test
from fedpref.data.partition import Allocation, allocate, capacities
from fedpref.data.pool import write_pool
from fedpref.data.records import SPLITS, Annotation, Report
from fedpref.data.site import (
    SiteDirectory,
    SiteInfo,
    SitePolicy,
    check_site,
    site_directories,
    write_site,
)

__all__ = [
    "SPLITS",
    "Allocation",
    "Annotation",
    "PermutationTest",
    "Report",
    "SiteDirectory",
    "SiteInfo",
    "SitePolicy",
    "allocate",
    "capacities",
    "case_mix_divergence",
    "check_site",
    "permutation_test",
    "site_directories",
    "write_pool",
    "write_site",
]
