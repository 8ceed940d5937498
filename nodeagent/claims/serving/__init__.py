"""Claims prepared and released: read, admitted, made, and taken down."""
