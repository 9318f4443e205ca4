"""A report as one HTML page that needs nothing but a browser: charts are SVG made here, which a script only links."""
