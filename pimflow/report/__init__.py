"""Reports for readers and programs: tables, the summary, inspection, comparisons, traces."""
