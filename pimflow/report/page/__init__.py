"""A report as one HTML page that needs only a browser: charts are SVG created here, which a script merely links."""
