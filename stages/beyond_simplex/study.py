"""The numbers that claims of this study call by name, each with its numerical twin if it has one."""

import simplices

CALLS = {
    "code.margin": (simplices.code_margin, simplices.code_margin_numerical),
    "code.cold_over_even": (simplices.cold_over_even,),
    "code.simplices": (simplices.simplices_value, simplices.simplices_value_numerical),
}
