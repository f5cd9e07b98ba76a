"""Reports and annotations: records, site directories, readers, partition into sites."""

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
    "Annotation",
    "Report",
    "SiteDirectory",
    "SiteInfo",
    "SitePolicy",
    "check_site",
    "site_directories",
    "write_site",
]
