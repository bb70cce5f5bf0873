"""Operations that move elements and keep their values: reshape, join, repeat, diagonals."""
