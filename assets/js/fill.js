// Values for a page's fields from an address, without those of the fields that are being edited.
const values = said ? JSON.parse(said) : [];
const touched = GIVEN.fields.map((name) => window.draftscopeTouched.has(name));
const whole = GIVEN.together.some((index) => touched[index]);
return values.map((value, index) =>
  touched[index] || (whole && GIVEN.together.includes(index)) ? undefined : value);
