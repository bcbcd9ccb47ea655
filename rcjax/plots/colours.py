"""The colours of Okabe & Ito (2008), which the colour-blind tell apart."""

BLUE, ORANGE, GREEN, PURPLE, BLACK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#8A8A8A"
