"""What people and programs are shown: tables, the summary, inspection, comparisons, traces."""
