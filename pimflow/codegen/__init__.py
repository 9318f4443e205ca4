"""What a node asks of a unit, and the programs that units execute: a folder for every kind of unit."""

from pimflow.codegen.work import ConvProblem, MatmulProblem, MatrixProblem, Work, matrix_problem

__all__ = ["ConvProblem", "MatmulProblem", "MatrixProblem", "Work", "matrix_problem"]
