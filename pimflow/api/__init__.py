"""What Python and the command line call: a function for every verb, each of which `pimflow` has under its name."""
