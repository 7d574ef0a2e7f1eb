// The types of fragments: FN rows of FM columns of sums, each of FK products.
#default FN = 16
#default FM = 16
#default FK = 16
alias left_t = subgroup_matrix_left<f16, $FK, $FN>;
alias right_t = subgroup_matrix_right<f16, $FM, $FK>;
alias sums_t = subgroup_matrix_result<f32, $FM, $FN>;
