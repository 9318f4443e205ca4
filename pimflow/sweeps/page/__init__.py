"""A sweep as one HTML page: charts as SVG generated here, a script that links them, no network access."""
