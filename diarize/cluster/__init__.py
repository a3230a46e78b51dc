"""From embeddings to clusters: PLDA, linkage, VBx, assignment, k-means, and the two back-ends made of them."""
