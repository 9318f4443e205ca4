"""The work that nodes are for a unit, and the programs that units execute: one folder per kind of unit."""

from pimflow.codegen.work import ConvProblem, MatmulProblem, MatrixProblem, Work, matrix_problem

__all__ = ["ConvProblem", "MatmulProblem", "MatrixProblem", "Work", "matrix_problem"]
