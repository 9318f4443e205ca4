"""A sweep as one HTML page: charts as SVG made here, a script that links them, no network."""
